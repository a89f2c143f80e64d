"""Settings: `TrainConfig`, its files, presets and generated pages."""
