"""Grammars that generated text has to keep to: checked by gateways, followed by workers."""
