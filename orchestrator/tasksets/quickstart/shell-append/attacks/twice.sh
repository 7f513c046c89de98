echo end >> notes.txt; echo end >> notes.txt
