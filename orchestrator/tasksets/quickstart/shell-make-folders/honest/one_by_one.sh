mkdir red; mkdir blue
