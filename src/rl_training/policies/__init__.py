"""Networks, distributions and normalisers: from observations to actions and values."""
