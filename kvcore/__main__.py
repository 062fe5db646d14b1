from kvcore.drivers.cli import main

raise SystemExit(main())
