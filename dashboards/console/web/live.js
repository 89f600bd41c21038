// A part of the page whose HTML comes from the server. A new version is applied node by node, so
// that keyboard focus, scrolling, selected text and opened details stay where they are.

const KEPT = new Set(["open"]); // a person opens and closes these

function patchAttributes(old, next) {
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function isSame(old, next) {
  return old.nodeType === next.nodeType && old.nodeName === next.nodeName;
}

function patchChildren(old, next) {
  const have = [...old.childNodes];
  const want = [...next.childNodes];
  want.forEach((child, i) => {
    const mine = have[i];
    if (mine === undefined) old.appendChild(child);
    else if (!isSame(mine, child)) old.replaceChild(child, mine);
    else if (child.nodeType !== Node.ELEMENT_NODE) {
      if (mine.nodeValue !== child.nodeValue) mine.nodeValue = child.nodeValue;
    } else {
      patchAttributes(mine, child);
      patchChildren(mine, child);
    }
  });
  have.slice(want.length).forEach((extra) => extra.remove());
}

export default {
  template: "<div></div>",
  props: { markup: String },
  mounted() {
    this.$el.innerHTML = this.markup;
  },
  watch: {
    markup(next) {
      const page = document.createElement("template");
      page.innerHTML = next;
      patchChildren(this.$el, page.content);
    },
  },
};
