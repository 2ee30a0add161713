"""An audit of how much of a node's sentences its shared gradients reveal, and to whom.

A victim shares some gradients of one batch, or the change of its weights after training on the batch (:mod:`.sharing`).
An attacker assumes a table of tokens (:mod:`.tokens`) and runs an attack: the row space or the covariance of the first
layer, or the rows of a shared embedding (:mod:`.leaks`), or gradient matching (:mod:`.inversion`). The recovered text
is compared with the original (:mod:`.tokens`) and with a guess, over many sentences, for several methods and attackers
at once (:mod:`.audit`). A task says which sentences its nodes have, and how its model reads them (:mod:`.sharing`).

Nothing here attacks a running federation: the victim is simulated with a model and sentences on one machine.
"""
