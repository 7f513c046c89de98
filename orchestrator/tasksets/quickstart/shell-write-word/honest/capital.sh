printf Hello > greeting.txt
