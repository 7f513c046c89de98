mkdir red
