package box

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

const maxName = 64 // of a template or workspace

// validateSpec checks what a new box is asked to be, and fills in what is not said.
// Its id was checked where the request came in.
func validateSpec(id string, s *hostapi.BoxSpec) error {
	switch {
	case s.Generation < 1:
		return hosterr.Invalid("generation starts at 1")
	case s.Template == "" && (s.Capture != "" || s.WarmFrom != "" || s.DiskOf != ""): // the source's
	case !validName(s.Template):
		return hosterr.Invalid("template name: want 1 to %d characters of a-z, 0-9, '.', '_' and '-'", maxName)
	case len(s.WorkspaceID) > maxName || strings.ContainsRune(s.WorkspaceID, 0):
		return hosterr.Invalid("workspace id")
	}
	switch s.Boot {
	case "":
		s.Boot = hostapi.BootRestore
	case hostapi.BootRestore, hostapi.BootCold:
	default:
		return hosterr.Invalid("boot: want %q or %q", hostapi.BootRestore, hostapi.BootCold)
	}
	if err := validateSource(id, s); err != nil {
		return err
	}
	if err := validateVolumes(s.Volumes); err != nil {
		return err
	}
	if s.Hostname == "" {
		s.Hostname = defaultHostname(id)
	}
	if !validHostname(s.Hostname) {
		return hosterr.Invalid("hostname: want 1 to 63 characters of a-z, 0-9 and '-'")
	}
	if len(s.Env) > hostapi.MaxVariables {
		return hosterr.Invalid("environment: it has more than %d variables", hostapi.MaxVariables)
	}
	return guestio.ValidateEnv(s.Env, hostapi.MaxEnv)
}

func validateSource(id string, s *hostapi.BoxSpec) error {
	switch {
	case s.Capture != "" && s.WarmFrom != "":
		return hosterr.Invalid("capture and warm_from exclude each other")
	case s.Asleep && (s.Capture == "" || s.Boot != hostapi.BootRestore || len(s.Volumes) > 0):
		return hosterr.Invalid("asleep: want a capture, its memory, and no volumes")
	case s.Capture != "" && !capture.ValidID(s.Capture):
		return hosterr.Invalid("capture: not an id")
	case s.DiskOf != "":
		return validateDiskOf(id, s)
	case s.WarmFrom == "":
		return nil
	case !hostapi.ValidID(s.WarmFrom) || s.WarmFrom == id:
		return hosterr.Invalid("warm_from: not the id of another sandbox")
	case s.Boot == hostapi.BootCold:
		return hosterr.Invalid("a warm fork goes on from its parent's memory and is not booted")
	case len(s.Volumes) > 0:
		return hosterr.Invalid("a warm fork takes no volumes")
	}
	return nil
}

func validateDiskOf(id string, s *hostapi.BoxSpec) error {
	switch {
	case s.Capture != "" || s.WarmFrom != "":
		return hosterr.Invalid("disk_of excludes capture and warm_from")
	case !hostapi.ValidID(s.DiskOf) || s.DiskOf == id:
		return hosterr.Invalid("disk_of: not the id of another sandbox")
	case s.Boot != hostapi.BootCold:
		return hosterr.Invalid("a copy of a disk is booted from: want boot %q", hostapi.BootCold)
	}
	return nil
}

const maxVolumeID = 20 // bytes of a virtio block device's serial number

func validateVolumes(volumes []hostapi.VolumeAttach) error {
	if len(volumes) > hostapi.MaxVolumes {
		return hosterr.Invalid("at most %d volumes", hostapi.MaxVolumes)
	}
	ids, paths := map[string]bool{}, map[string]bool{}
	for _, v := range volumes {
		why := hostapi.BadMountPath(v.MountPath)
		switch {
		case !capture.ValidID(v.ID) || len(v.ID) > maxVolumeID:
			return hosterr.Invalid("volume id %q", v.ID)
		case why != "":
			return hosterr.Invalid("mount path of volume %s: it %s", v.ID, why)
		case ids[v.ID] || paths[v.MountPath]:
			return hosterr.Invalid("volume %s or its mount path is there twice", v.ID)
		}
		ids[v.ID], paths[v.MountPath] = true, true
	}
	return nil
}

// defaultHostname differs from sandbox to sandbox and is the same for a
// sandbox's whole life. It is a digest of the id, not a part of it: the id is a
// bearer credential, and programs in the guest print the hostname everywhere.
func defaultHostname(id string) string {
	digest := sha256.Sum256([]byte(id))
	return "sandbox-" + hex.EncodeToString(digest[:4])
}

func validName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

func validHostname(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
