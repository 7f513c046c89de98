cp draft.txt final.txt
