echo end > notes.txt
