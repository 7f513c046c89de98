"""Task sets: from a folder of task folders, one task folder, or a file of rows, to frozen tasks.

Every fault of every task is reported at once; nothing of a task's protected half reaches its public half.
"""

from workers.taskset.loader import Dropped, OnBadTask, TaskSet, load
from workers.taskset.settings import Caps

__all__ = ["Caps", "Dropped", "OnBadTask", "TaskSet", "load"]
