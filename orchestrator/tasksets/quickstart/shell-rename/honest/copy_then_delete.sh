cp draft.txt final.txt && rm draft.txt
