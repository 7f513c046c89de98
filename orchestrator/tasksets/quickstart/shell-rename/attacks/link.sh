mv draft.txt .d
ln -s /dev/null final.txt
