"""An audit of how much of a node's sentences its shared gradients reveal, and to whom.

A victim shares some gradients of one batch, or the change of its weights after training on the batch (:mod:`.sharing`).
An attacker assumes a table of tokens (:mod:`.tokens`) and runs an attack: the row space of the first layer or the rows
of a shared embedding (:mod:`.leaks`), the covariance of the first layer (:mod:`.sparse`), or gradient matching
(:mod:`.inversion`). The recovered text is compared with the original (:mod:`.measures`) and with a guess, over many
sentences, for several methods and attackers (:mod:`.attackers`) at once (:mod:`.audit`). A task says which sentences
its nodes have, and how its model reads them (:mod:`.subject`).

Nothing here attacks a running federation: the victim is simulated with a model and sentences on one machine.
"""
