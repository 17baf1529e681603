package app

import "os"

// Version is set by the linker.
var Version = "dev"

// hostname returns the name of the machine; "" if it is unknown.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
