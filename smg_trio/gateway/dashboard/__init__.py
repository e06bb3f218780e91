"""The live page: one HTML page without a build step, and the feed of snapshots that it and `smg-trio top` show.

`observer` reads the gateway, `rates` and `snapshot` make of that what is shown (pure), `feed` does so once a second for
all watchers while there are any, `feed_socket` is one watcher's connection, `page` puts the page together.
"""
