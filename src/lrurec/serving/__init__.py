"""An artifact, a store and a stream of events to fresh recommendations. Never imports torch."""
