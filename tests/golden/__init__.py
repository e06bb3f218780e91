"""Golden wire vectors, made with the real engine classes, decoded and encoded both ways."""
