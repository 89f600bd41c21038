"""Common English words, for prompts that a tokenizer splits as it splits real text."""

from __future__ import annotations

_TEXT = """
the of and to in a is that for it as was with be by on not he this are or his from at which but
have an had they you were their one all we can her has there been if more when will would who so
no out up said what its about than into them only some time could these two may then do first any
my now such like our over man me even most made after also did many before must through back years
where much your way well down should because each just those people how too little state good very
make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take
three small water house number part place high school government always public war fact though
night head home side without room general social become later power order city question point
river mountain letter garden market window winter summer morning evening teacher doctor driver
carpenter captain sailor baker farmer paper table chair bridge street train ship harbor island
forest field stone silver golden quiet heavy narrow broad early simple certain clear bright
travel answer explain describe compare measure repair build carry follow listen remember promise
decide arrive return gather choose begin finish discover imagine protect improve suggest several
different important possible special common private modern ancient careful honest gentle curious
weather language history science music picture story problem reason result machine engine method
system model memory value price trade cotton copper bread coffee orange apple kitchen corner
"""
WORDS = tuple(_TEXT.split())
"""Each is a token or two of the usual vocabularies when a space is in front of it."""
