package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/storage"
)

// damage damages one copy in each of four ways bypassing millrace, and deletes one item
// through the emit decorator. It is idempotent, so that a killed demo can repeat it.
func (d *demo) damage(ctx context.Context) error {
	if err := d.waitCommitted(ctx); err != nil {
		return err
	}
	p := d.checkpoint.Picks
	step := d.display.Step("damage copies", 5)
	for _, damage := range []func() error{
		func() error { return d.flip(ctx, "2", p.Flip) },
		func() error { return d.truncate(ctx, "3", p.Truncate) },
		func() error { return d.remove(ctx, "2", p.Remove) },
		func() error { return d.replace(ctx, "3", p.Replace) },
		func() error { return d.delete(ctx, p.Delete) },
	} {
		if err := damage(); err != nil {
			step.End(false)
			return err
		}
		step.Add(1)
	}
	step.End(true)
	d.checkpoint.Damaged = time.Now().UTC()
	return nil
}

// waitCommitted waits until all work is committed. Uncommitted work would be repeated after a kill,
// and would repair the damage before it is found.
func (d *demo) waitCommitted(ctx context.Context) error {
	return d.until(ctx, "all work committed", func(ctx context.Context) (app.Progress, error) {
		behind, err := d.app.Lag(ctx, schemas.RolePlanner, schemas.RoleCopier, schemas.RoleChecker,
			schemas.RoleSteward, schemas.RoleDelayer)
		return app.Progress{Done: -behind}, err
	})
}

// path returns the path of a copy's file.
func (d *demo) path(ctx context.Context, store, item string) (string, error) {
	if d.server != nil && store != primary {
		return d.server.path(store, item), nil
	}
	return d.app.Stores().Path(ctx, app.StoreName{Account: account, Store: store}, space, item)
}

// changeFile changes a copy's file and restores its modification time. It records the original
// state first, so that a repetition after a kill has the same result.
func (d *demo) changeFile(ctx context.Context, store, item string, change func(*os.File, original) error) error {
	path, err := d.path(ctx, store, item)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	was, err := d.recordOriginal(f, item)
	if err == nil {
		err = change(f, was)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Chtimes(path, time.Time{}, was.Modified)
}

func (d *demo) recordOriginal(f *os.File, item string) (original, error) {
	if was, ok := d.checkpoint.Originals[item]; ok {
		return was, nil
	}
	info, err := f.Stat()
	if err != nil {
		return original{}, err
	}
	var first [1]byte
	if _, err := f.ReadAt(first[:], 0); err != nil {
		return original{}, err
	}
	if d.checkpoint.Originals == nil {
		d.checkpoint.Originals = map[string]original{}
	}
	was := original{first[0], info.ModTime()}
	d.checkpoint.Originals[item] = was
	return was, d.checkpoint.save()
}

// flip inverts the first byte of a copy.
func (d *demo) flip(ctx context.Context, store, item string) error {
	err := d.changeFile(ctx, store, item, func(f *os.File, was original) error {
		_, err := f.WriteAt([]byte{was.First ^ 0xff}, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("flip a byte of %s: %w", item, err)
	}
	return nil
}

// truncate cuts a copy to half the size of the item in the first store.
func (d *demo) truncate(ctx context.Context, store, item string) error {
	st, _ := d.app.Stores().Store(account, primary)
	object, err := st.Stat(ctx, space, item)
	if err != nil {
		return fmt.Errorf("truncate %s: %w", item, err)
	}
	err = d.changeFile(ctx, store, item, func(f *os.File, _ original) error { return f.Truncate(object.Size / 2) })
	if err != nil {
		return fmt.Errorf("truncate %s: %w", item, err)
	}
	return nil
}

// remove deletes a copy's file.
func (d *demo) remove(ctx context.Context, store, item string) error {
	path, err := d.path(ctx, store, item)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("remove %s: %w", item, err)
	}
	return nil
}

// replace overwrites a copy through its driver, without a Change.
func (d *demo) replace(ctx context.Context, store, item string) error {
	first, _ := d.app.Stores().Store(account, primary)
	st, _ := d.app.Stores().Store(account, store)
	good, _, err := first.Open(ctx, space, item, "")
	if err != nil {
		return fmt.Errorf("replace %s: %w", item, err)
	}
	defer good.Close()
	other := io.MultiReader(strings.NewReader("not what was stored\n"), good)
	if _, err := st.Put(ctx, space, item, other, storage.PutOptions{Size: storage.UnknownSize}); err != nil {
		return fmt.Errorf("replace %s: %w", item, err)
	}
	return nil
}

// delete deletes an item from the first store through the emit decorator. If a killed run has
// deleted it, the outbox has the Change.
func (d *demo) delete(ctx context.Context, item string) error {
	_, err := d.emit.Delete(ctx, space, item, storage.DeleteOptions{})
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("delete %s: %w", item, err)
	}
	return nil
}
