package app

import "os"

// Version is set by the linker.
var Version = "dev"

// hostname is the machine's name, empty where it has none.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
