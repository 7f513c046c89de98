rm -rf cache/*
