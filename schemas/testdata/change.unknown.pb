
 7b1dd1a5f3a34b3d0c3f6dbeab3c0f11acme"2*photos22020/film.movb'
md5 304f6be33fc417b75a6e3991b70f672dhä†ô‡œ¿Ãçöann¢import®ÿ‡