"""Training methods, one learner per module; `soma.training.learner.LEARNERS` lists them."""
