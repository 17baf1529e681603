
 0b6a4a4e9f9d43d28f3bd8d94d8de1b4acme1"photos*2020/film.mov08bÅ
'
md5 304f6be33fc417b75a6e3991b70f672d:†ô‡œ¿ÃçZvideo/quicktimehxÇ-
v1'
md5 5d41402abc4b2a76b9719d911017c592j÷ö‡œ¿¡¿