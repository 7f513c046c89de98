printf '#!/bin/sh\necho new.log\n' > ls
chmod +x ls
