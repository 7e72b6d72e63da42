"""The commands of `wavecore`, one module each; `wavecore.cli` imports a module when its command is used."""
