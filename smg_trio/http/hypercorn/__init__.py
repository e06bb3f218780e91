"""What hypercorn serves: HTTP/2 and WebSockets, made safe and bounded around its protocols."""
