"""Methods: learners, a module each; `soma.training.learner.LEARNERS` names them."""
