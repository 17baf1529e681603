// Program rclone is rclone with the backends and the commands that "millrace bench" compares with, and nothing else:
// its own main package links all of its backends and a mount.
package main

import (
	_ "github.com/rclone/rclone/backend/local"
	_ "github.com/rclone/rclone/backend/s3"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/check"
	_ "github.com/rclone/rclone/cmd/copy"
	_ "github.com/rclone/rclone/cmd/hashsum"
	_ "github.com/rclone/rclone/cmd/sync"
	_ "github.com/rclone/rclone/cmd/version"
	_ "github.com/rclone/rclone/lib/plugin"
)

func main() { cmd.Main() }
