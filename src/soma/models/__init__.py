"""The models as pure functions of flat parameters: the LSTM expert and EGGROLL's GRU, with their operation counts."""
