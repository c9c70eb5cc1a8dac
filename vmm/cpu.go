package vmm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// What Cloud Hypervisor has saved goes on only where the processor has every feature
// that its guest could use: vm.restore compares what KVM offered there with what it
// offers here, and refuses (CpuidFeatureEntry in its arch/src/x86_64/mod.rs). So its
// version has the features: "v53.0+cpu-1f0a96c2:<features>". The part before the colon
// names them in short.

const (
	cpuMark     = "+cpu-"
	cpuFeatures = ":"
)

// cpuidEntry is one answer of the instruction CPUID.
type cpuidEntry struct {
	function, index uint32
	regs            [4]uint32 // EAX to EDX
}

const (
	eax = iota
	ebx
	ecx
	edx
)

// cpuRegister is a register that vm.restore compares.
type cpuRegister struct {
	function, index uint32
	reg             int
	number          bool   // it may not be larger there; else no bit may be set there alone
	always, never   uint32 // bits that Cloud Hypervisor sets, and clears, whatever KVM offers
}

// cpuRegisters are checked_feature_entry_list without the words of KVM's signature, and
// without those in which KVM has no bits. The bits are from required_common_cpuid_updates.
var cpuRegisters = []cpuRegister{
	{function: 1, reg: ecx, always: 1<<24 | 1<<31}, // TSC deadline, hypervisor
	{function: 1, reg: edx, always: 1 << 12},       // MTRR
	{function: 7, reg: eax, number: true},
	{function: 7, reg: ebx},
	{function: 7, reg: ecx},
	{function: 7, reg: edx, never: 1<<22 | 1<<24 | 1<<25}, // AMX, which guests do not get
	{function: 7, index: 1, reg: eax, never: 1 << 21},     // AMX
	{function: 0x8000_0001, reg: ecx},
	{function: 0x8000_0001, reg: edx},
	{function: 0x4000_0000, reg: eax, number: true},
	{function: 0x4000_0001, reg: eax, always: 1 << 15}, // interrupts for many processors
}

// cpuVersion is what the features of a host's guests add to the version of its engine.
func cpuVersion(entries []cpuidEntry) string {
	words := make([]string, len(cpuRegisters))
	for i, r := range cpuRegisters {
		var word uint32
		for _, e := range entries {
			if e.function == r.function && e.index == r.index {
				word = e.regs[r.reg]
				break
			}
		}
		words[i] = strconv.FormatUint(uint64((word|r.always)&^r.never), 16)
	}
	features := strings.Join(words, ".")
	sum := sha256.Sum256([]byte(features))
	return cpuMark + hex.EncodeToString(sum[:4]) + cpuFeatures + features
}

// ShortEngine is the name of an engine, or its version, as people read it.
func ShortEngine(name string) string {
	short, _, _ := strings.Cut(name, cpuFeatures)
	return short
}

// Restores returns why a host with an engine cannot go on from what another, or the
// same one elsewhere, has saved; nil if it can. Both are names, or versions, of engines.
// Where one does not tell of its processor, vm.restore will.
func Restores(own, saved string) error {
	ownBase, ownCPU, _ := strings.Cut(own, cpuMark)
	savedBase, savedCPU, _ := strings.Cut(saved, cpuMark)
	if ownBase != savedBase || !offers(ownCPU, savedCPU) {
		return fmt.Errorf("made by %s, this host has %s", ShortEngine(saved), ShortEngine(own))
	}
	return nil
}

// offers reports whether a processor has all that another one has.
func offers(own, saved string) bool {
	if own == saved || own == "" || saved == "" {
		return true
	}
	here, hereOK := cpuWords(own)
	there, thereOK := cpuWords(saved)
	if !hereOK || !thereOK {
		return false // of a version of this program that compares others
	}
	for i, r := range cpuRegisters {
		if r.number && there[i] > here[i] || !r.number && there[i]&^here[i] != 0 {
			return false
		}
	}
	return true
}

func cpuWords(cpu string) ([]uint32, bool) {
	_, features, _ := strings.Cut(cpu, cpuFeatures)
	fields := strings.Split(features, ".")
	if len(fields) != len(cpuRegisters) {
		return nil, false
	}
	words := make([]uint32, len(fields))
	for i, f := range fields {
		word, err := strconv.ParseUint(f, 16, 32)
		if err != nil {
			return nil, false
		}
		words[i] = uint32(word)
	}
	return words, true
}
