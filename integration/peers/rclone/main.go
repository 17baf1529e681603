// Program rclone is rclone with what "millrace bench storage" compares itself with, and nothing else: its
// own main package links all of its backends and a mount.
package main

import (
	_ "github.com/rclone/rclone/backend/s3"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/copy"
	_ "github.com/rclone/rclone/cmd/hashsum"
	_ "github.com/rclone/rclone/cmd/version"
	_ "github.com/rclone/rclone/lib/plugin"
)

func main() { cmd.Main() }
