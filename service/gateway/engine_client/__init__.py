"""The gateway's end of the engine: commands out, emissions in, supervision."""
