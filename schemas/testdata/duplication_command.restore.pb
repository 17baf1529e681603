
 950a3f21c14d74bed9b2e26f0f84ee28acmephotos"2020/Ã©tÃ©/ 100% â˜‚.jpg*2218@Jbrake-0e2e2f0d1090hªalice²æ™àÏÀùïÊˆ
'
md5 304f6be33fc417b75a6e3991b70f672d"
2"
11777862521987000000-123452Ø™àÏÀðõ:brake-0e2e2f0d1090Ba script removed them