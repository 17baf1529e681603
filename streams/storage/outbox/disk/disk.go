// Package disk describes the directory in which an outbox keeps its files.
package disk

import "io"

// A Disk is the directory of an outbox. Tests replace it to fail at any step and to lose unsynced data.
type Disk interface {
	// Names returns the file names, unsorted.
	Names() ([]string, error)
	// Open opens a file; with create it creates the file, which must not exist.
	Open(name string, create bool) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes created, renamed and removed files durable.
	Sync() error
}

// A File is an open file of a Disk.
type File interface {
	readWriterAt
	io.Closer
	// Sync makes the bytes and the size durable.
	Sync() error
	Truncate(size int64) error
	// Size returns the current size in bytes.
	Size() (int64, error)
}

type readWriterAt interface {
	io.ReaderAt
	io.WriterAt
}
