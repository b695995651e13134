"""The time that training takes, by cost quantity, and the device that it is measured on."""
