"""All that is in keys: data, training, methods, games and victims. An edit here trains again."""
