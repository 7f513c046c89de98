ln -s /tmp red; ln -s /tmp blue
