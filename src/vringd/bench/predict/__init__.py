"""What measured costs say of machines that are not at hand: a small queueing model.

`costs` measures what a request costs here, `model` computes rates from that, `validation`
compares the model with cells that this machine can measure.
"""
