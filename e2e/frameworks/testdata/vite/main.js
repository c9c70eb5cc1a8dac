document.title = "vite, built";
