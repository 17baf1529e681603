package app

import (
	"os"

	"google.golang.org/protobuf/types/known/timestamppb"
)

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

// now is the time of what happens here and has no other: a person's act.
func now() *timestamppb.Timestamp { return timestamppb.Now() }
