package integration

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// setProperties sets other properties of the source, as a client does: where the store can only put, it puts the bytes
// again.
func (w *copyWorld) setProperties() *pb.DuplicationCommand {
	w.t.Helper()
	p := storage.Properties{MediaType: "image/png", User: map[string]string{"by": "you"}}
	o, err := w.stores["1"].SetProperties(w.t.Context(), copySpace, copyItem, p, storage.Condition{})
	if errors.Is(err, storage.ErrUnsupported) {
		o = w.write("1", w.content("1"), storage.PutOptions{Properties: p})
		return w.reported(record.Content(w.at("1"), o))
	}
	w.must(err)
	c := record.Content(w.at("1"), o)
	c.Op = pb.Op_OP_SET_PROPERTIES
	return w.reported(c)
}

// sameProperties checks that a copy of known content has the properties of its source.
func (w *copyWorld) sameProperties(order string) {
	w.t.Helper()
	from, err := w.stores["1"].Stat(w.t.Context(), copySpace, copyItem)
	to, err2 := w.stores["2"].Stat(w.t.Context(), copySpace, copyItem)
	if err != nil || err2 != nil || from.PropertiesUnknown {
		return
	}
	if from.Properties.MediaType != to.Properties.MediaType || !maps.Equal(from.Properties.User, to.Properties.User) {
		w.t.Errorf("%s: the source has %+v, the copy %+v", order, from.Properties, to.Properties)
	}
}

// overwriteFile writes a file of a directory as another program does, without properties or digests.
func (w *copyWorld) overwriteFile(store, text string) {
	w.t.Helper()
	name := w.file(store)
	w.must(os.MkdirAll(filepath.Dir(name), 0o755))
	w.must(os.RemoveAll(name))
	w.must(os.WriteFile(name, []byte(text), 0o644))
}

// rot changes the bytes of a file and nothing else that its driver reports.
func (w *copyWorld) rot(store, text string) {
	w.t.Helper()
	w.must(rotFile(w.file(store), func([]byte) []byte { return []byte(text) }))
}

// rotFile changes the bytes of a file in place, and keeps its modification time and its attributes.
func rotFile(name string, edit func([]byte) []byte) error {
	i, err := os.Stat(name)
	if err != nil {
		return err
	}
	was, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, edit(was), i.Mode()); err != nil {
		return err
	}
	return os.Chtimes(name, time.Time{}, i.ModTime())
}

func (w *copyWorld) file(store string) string {
	return filepath.Join(w.roots[store], copySpace, filepath.FromSlash(copyItem))
}
