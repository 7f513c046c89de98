echo end >> notes.txt
