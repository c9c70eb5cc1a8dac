package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/vmm"
)

const residents = 8 // sandboxes whose memory is measured

// footprint is the memory of a VMM and all its children, in kB.
type footprint struct {
	pss int // a page that n processes share counts 1/n
	// Of the mappings of the guest's RAM:
	ramPSS     int
	ramTouched int // present, shared or not
	ramWritten int // private: written since they were mapped
}

// engineMB is the memory besides the guest's RAM.
func (f footprint) engineMB() float64 { return float64(f.pss-f.ramPSS) / 1024 }

// measureMemory measures the proportional set size of sandboxes that have run a
// command.
func measureMemory(ctx context.Context, b *bench) error {
	var ids []string
	total := 0
	for range residents {
		m, err := createOne(ctx, b, api.BootRestore)
		if err != nil {
			return err
		}
		ids = append(ids, m.sandbox.ID)
		if _, err := b.exec(ctx, m.sandbox.ID, "python3 -c 'print(6*7)'"); err != nil {
			return err
		}
	}
	for _, id := range ids {
		f, err := footprintOf(ctx, b, id)
		if err != nil {
			return err
		}
		total += f.pss
	}
	b.r.add("memory_of_a_sandbox_pss", float64(total)/1024/residents, "MB")
	return b.deleteAll(ctx, ids)
}

// footprintOf gets a sandbox's VMM from its host, and its memory from the kernel.
func footprintOf(ctx context.Context, b *bench, id string) (footprint, error) {
	sandbox, err := b.c.GetSandbox(ctx, id)
	if err != nil {
		return footprint{}, err
	}
	box, err := b.box(ctx, sandbox)
	if err != nil {
		return footprint{}, err
	}
	return footprintOfTree(box.VMMPID)
}

// footprintOfTree adds up a process and all its descendants.
func footprintOfTree(root int) (footprint, error) {
	var total footprint
	for pids := []int{root}; len(pids) > 0; {
		pid := pids[0]
		pids = pids[1:]
		proc := "/proc/" + strconv.Itoa(pid)
		if err := total.addProcess(proc + "/smaps"); err != nil {
			return total, err
		}
		// A VMM has many threads, and each may have started a child.
		tasks, err := os.ReadDir(proc + "/task")
		if err != nil {
			return total, err
		}
		for _, task := range tasks {
			children, err := os.ReadFile(proc + "/task/" + task.Name() + "/children")
			if err != nil {
				return total, err
			}
			for _, child := range strings.Fields(string(children)) {
				n, err := strconv.Atoi(child)
				if err != nil {
					return total, err
				}
				pids = append(pids, n)
			}
		}
	}
	return total, nil
}

// addProcess adds one process's mappings.
func (f *footprint) addProcess(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	ram := false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || strings.Contains(name, " ") { // the head of a mapping: "from-to perms offset dev inode path"
			ram = isRAM(lines.Text())
			continue
		}
		kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		if err != nil {
			continue // VmFlags, and fields that are not sizes
		}
		switch {
		case name == "Pss":
			f.pss += kb
			if ram {
				f.ramPSS += kb
			}
		case ram && name == "Rss":
			f.ramTouched += kb
		case ram && name == "Anonymous":
			f.ramWritten += kb
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// isRAM reports whether a mapping is a guest's RAM, as passed to an isolated VMM
// or from a saved state. The file may have been deleted since.
func isRAM(head string) bool {
	fields := strings.Fields(head)
	if len(fields) < 6 {
		return false
	}
	path := fields[5]
	name := path[strings.LastIndexByte(path, '/')+1:]
	return name == vmm.FileMemory || name == "ram0"
}
