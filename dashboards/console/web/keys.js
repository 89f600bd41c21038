// Keys: 1 to 6 open the views, / goes to the search, t changes light and dark.
(() => {
  const themes = ["auto", "light", "dark"];
  const store = "phasescope-theme";
  const read = () => {
    try {
      return localStorage.getItem(store) || "auto";
    } catch {
      return "auto";
    }
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const shown = document.getElementById("theme-name");
    if (shown) shown.textContent = theme;
  };
  const turn = () => {
    const theme = themes[(themes.indexOf(read()) + 1) % themes.length];
    try {
      localStorage.setItem(store, theme);
    } catch {
      // private windows may have no storage: the theme then lasts as long as the page
    }
    apply(theme);
  };
  document.documentElement.lang = "en";
  apply(read());
  document.addEventListener("click", (event) => {
    if (event.target.closest("#theme")) turn();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    const link = document.querySelector(`nav.views a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
    else if (event.key === "t") turn();
    else if (event.key === "/") {
      event.preventDefault();
      const search = document.getElementById("search");
      if (search) search.focus();
      else location.href = "/requests#search";
    }
  });
  window.phasescopeTheme = () => apply(read());
  if (location.hash === "#search") {
    const timer = setInterval(() => {
      const search = document.getElementById("search");
      if (!search) return;
      search.focus();
      clearInterval(timer);
    }, 100);
  }
})();
