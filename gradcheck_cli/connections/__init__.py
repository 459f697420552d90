"""Ways through a graph, read off its nodes alone: where a derivative may flow, and what cuts it off."""
