"""The proof that training does not depend on the number of devices: models, optimizers, and the measure."""
