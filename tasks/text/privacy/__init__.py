"""How much of a node's text its shared gradients give away, and to whom.

A victim shares some gradients of one batch (:mod:`.sharing`); an attacker believes in a table of tokens
(:mod:`.tokens`) and runs an attack: gradient matching (:mod:`.inversion`) or reading off the rows of a shared
embedding (:mod:`.rows`). What came back is held against what was written (:mod:`.measures`), over many sentences
(:mod:`.sentences`), for several methods and attackers (:mod:`.attackers`) at once (:mod:`.audit`).

Nothing here attacks a running federation: the victim is played by its own model and sentences, on one machine.
"""
