mkdir red blue
